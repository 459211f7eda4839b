"""Each row: one edit, the defect it stands for, and the tests that must notice."""

from devtools.mutants.table.attackers import ATTACKERS
from devtools.mutants.table.fencing import FENCING
from devtools.mutants.table.leading import LEADING
from devtools.mutants.table.mutant import Mutant
from devtools.mutants.table.placing import PLACING
from devtools.mutants.table.rare import RARE
from devtools.mutants.table.states import STATES
from devtools.mutants.table.stored import STORED
from devtools.mutants.table.traffic import TRAFFIC
from devtools.mutants.table.training import TRAINING

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = (
    *LEADING,
    *ATTACKERS,
    *FENCING,
    *STATES,
    *PLACING,
    *TRAINING,
    *STORED,
    *TRAFFIC,
    *RARE,
)
