"""The records that pass between rooms: frozen, plain, and small except for the weights.

``params`` is always one flat float32 vector. Its :class:`Layout` says what is where: the
trainable parameters first, then what is only carried along (running means of a batch norm).
"""

from flamma.types.arrays import Floats as Floats
from flamma.types.arrays import Inputs as Inputs
from flamma.types.arrays import Ints as Ints
from flamma.types.arrays import Layout as Layout
from flamma.types.arrays import Params as Params
from flamma.types.arrays import Targets as Targets
from flamma.types.client_work import NO_VECTORS as NO_VECTORS
from flamma.types.client_work import OWN_DATA as OWN_DATA
from flamma.types.client_work import ClientVectors as ClientVectors
from flamma.types.client_work import DataUse as DataUse
from flamma.types.client_work import LocalTask as LocalTask
from flamma.types.client_work import Profile as Profile
from flamma.types.client_work import TaskVectors as TaskVectors
from flamma.types.messages import MOST_SAMPLES as MOST_SAMPLES
from flamma.types.messages import Download as Download
from flamma.types.messages import Report as Report
from flamma.types.messages import Terms as Terms
from flamma.types.plan import SMALLEST_FACTOR as SMALLEST_FACTOR
from flamma.types.plan import Plan as Plan
from flamma.types.plan import Population as Population
from flamma.types.plan import Schedule as Schedule
from flamma.types.scores import ACCURACY_SCORE as ACCURACY_SCORE
from flamma.types.scores import NamesItsScore as NamesItsScore
from flamma.types.scores import ScoreKind as ScoreKind
from flamma.types.scores import Scores as Scores
from flamma.types.scores import Scoring as Scoring
