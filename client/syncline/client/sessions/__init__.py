"""Sessions of agents, for an app: the runtime, its actions, and stores that last.

from syncline.client.sessions import AgentDefinition, SendMessage, SessionRuntime

runtime = SessionRuntime()
session = runtime.create(AgentDefinition("assistant"))
runtime.execute(session.id, SendMessage("hello"))
"""

from syncline.sync.sessions import (
    AgentDefinition,
    AgentLoop,
    AgentSession,
    AgentState,
    ChangeModel,
    ChangeSystemPrompt,
    CheckpointSnapshot,
    CheckpointSource,
    ClearSession,
    EventSource,
    ExecutionStatus,
    ForkSession,
    MemorySessionStore,
    Message,
    PostCommitFailed,
    ResumeSession,
    RuntimeEvent,
    SendMessage,
    SessionAction,
    SessionActionExecuted,
    SessionController,
    SessionHeader,
    SessionHookStack,
    SessionLoaded,
    SessionLoadFailed,
    SessionRepository,
    SessionSaved,
    SessionSaveFailed,
    SessionStatus,
    SessionStore,
    Stage,
    SuspendSession,
    TaskItem,
    TaskStatus,
    UpdateTask,
    WriteMetadata,
)

from ._checkpoints import At, Checkpoints, Rollback
from ._facets import ReplicaCheckpoints, ReplicaLog
from ._file_store import JsonSessionStore
from ._history import StateAt
from ._replica_store import ReplicaSessionStore
from ._runtime import SessionRuntime, memory_store

__all__ = [
    "AgentDefinition",
    "AgentLoop",
    "AgentSession",
    "AgentState",
    "At",
    "ChangeModel",
    "ChangeSystemPrompt",
    "CheckpointSnapshot",
    "CheckpointSource",
    "Checkpoints",
    "ClearSession",
    "EventSource",
    "ExecutionStatus",
    "ForkSession",
    "JsonSessionStore",
    "MemorySessionStore",
    "Message",
    "PostCommitFailed",
    "ReplicaCheckpoints",
    "ReplicaLog",
    "ReplicaSessionStore",
    "ResumeSession",
    "Rollback",
    "RuntimeEvent",
    "SendMessage",
    "SessionAction",
    "SessionActionExecuted",
    "SessionController",
    "SessionHeader",
    "SessionHookStack",
    "SessionLoadFailed",
    "SessionLoaded",
    "SessionRepository",
    "SessionRuntime",
    "SessionSaveFailed",
    "SessionSaved",
    "SessionStatus",
    "SessionStore",
    "Stage",
    "StateAt",
    "SuspendSession",
    "TaskItem",
    "TaskStatus",
    "UpdateTask",
    "WriteMetadata",
    "memory_store",
]
