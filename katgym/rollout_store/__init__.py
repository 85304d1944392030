"""The store of rollouts: live sessions in SQLite, finished ones in Parquet.

Not here: the gateway that writes it; playing, and the lock of an evaluation (`katgym.evaluation`).
"""

from katgym.rollout_store.collecting import CollectReport, collect
from katgym.rollout_store.exporting import ColumnType, Exporter, export, exporter
from katgym.rollout_store.faults import CorruptStoreError
from katgym.rollout_store.groups import stored_groups, stored_rollouts
from katgym.rollout_store.records import (
    FailedCall,
    SessionRecord,
    SessionStatus,
    StoredSession,
)
from katgym.rollout_store.rollouts import (
    as_rollout,
    record_rollout,
    record_rollouts,
    rollout_groups,
    rollouts,
)
from katgym.rollout_store.sealing import SealReport
from katgym.rollout_store.statistics import StoreStatistics, statistics
from katgym.rollout_store.store import RolloutStore
from katgym.rollout_store.store_folders import StoreReader

__all__ = [
    "CollectReport",
    "ColumnType",
    "CorruptStoreError",
    "Exporter",
    "FailedCall",
    "RolloutStore",
    "SealReport",
    "SessionRecord",
    "SessionStatus",
    "StoreReader",
    "StoreStatistics",
    "StoredSession",
    "as_rollout",
    "collect",
    "export",
    "exporter",
    "record_rollout",
    "record_rollouts",
    "rollout_groups",
    "rollouts",
    "statistics",
    "stored_groups",
    "stored_rollouts",
]
