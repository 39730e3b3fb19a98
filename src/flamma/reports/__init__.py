"""Tables, figures and pages, made from records, never from live engines.

Examples
--------
>>> import flamma
>>> from flamma.reports import write_report
>>> run = flamma.run(rounds=1)
>>> write_report(run.path).name
'report.html'
"""

from flamma.reports.document import write_report

__all__ = ["write_report"]
