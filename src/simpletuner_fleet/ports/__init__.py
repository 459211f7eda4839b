"""Declares what the shell must provide. The orchestrator knows these interfaces, never their implementations."""

from simpletuner_fleet.core.training.checkpoint import StoredManifest as StoredManifest
from simpletuner_fleet.ports.records import (
    TOKEN_USE_NOTED_EVERY_S as TOKEN_USE_NOTED_EVERY_S,
)
from simpletuner_fleet.ports.records import (
    ApiToken as ApiToken,
)
from simpletuner_fleet.ports.records import (
    AuditFilter as AuditFilter,
)
from simpletuner_fleet.ports.records import (
    ConfigVersion as ConfigVersion,
)
from simpletuner_fleet.ports.records import (
    Ending as Ending,
)
from simpletuner_fleet.ports.records import (
    IdempotentAnswer as IdempotentAnswer,
)
from simpletuner_fleet.ports.records import (
    JobFilter as JobFilter,
)
from simpletuner_fleet.ports.records import (
    JobNote as JobNote,
)
from simpletuner_fleet.ports.records import (
    SavedView as SavedView,
)
from simpletuner_fleet.ports.records import (
    ScimEntry as ScimEntry,
)
from simpletuner_fleet.ports.records import (
    SetAsideRow as SetAsideRow,
)
from simpletuner_fleet.ports.records import (
    WaitingGroup as WaitingGroup,
)
from simpletuner_fleet.ports.shell import (
    MARK as MARK,
)
from simpletuner_fleet.ports.shell import (
    Blobs as Blobs,
)
from simpletuner_fleet.ports.shell import (
    Clock as Clock,
)
from simpletuner_fleet.ports.shell import (
    Ids as Ids,
)
from simpletuner_fleet.ports.shell import (
    SignedHeads as SignedHeads,
)
from simpletuner_fleet.ports.shell import (
    Streams as Streams,
)
from simpletuner_fleet.ports.shell import (
    Vault as Vault,
)
from simpletuner_fleet.ports.store import (
    ConcurrentChange as ConcurrentChange,
)
from simpletuner_fleet.ports.store import (
    RowObserver as RowObserver,
)
from simpletuner_fleet.ports.store import (
    Store as Store,
)
from simpletuner_fleet.ports.transactions import (
    Tx as Tx,
)
from simpletuner_fleet.ports.transactions import (
    View as View,
)
