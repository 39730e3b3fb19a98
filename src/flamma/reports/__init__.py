"""Tables, figures and pages, made from records, never from live engines."""
