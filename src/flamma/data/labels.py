"""Labels of samples, where code of the data finds them; see :mod:`flamma.tasks.labels`."""

from flamma.tasks.labels import MOST_CLASSES as MOST_CLASSES
from flamma.tasks.labels import whole_labels as whole_labels
