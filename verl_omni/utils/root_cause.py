"""The error behind Ray's wrappers, as one line that a user can act on."""

import re

# What gloo and NCCL say of a rank that has ended; it is seen before Ray notices the loss of the rank's node.
_LOST_RANK = re.compile(
    r"gloo/transport/.*(Connection closed by peer|Connection reset by peer|Broken pipe)|ncclRemoteError", re.DOTALL
)
# Fields that Ray lists for a dead actor, and its generic advice (memory, `ray stop`), which may be unrelated.
_FIELD = re.compile(r"^\t(class_name|actor_id|pid|name|namespace|ip): (.*)$")
_SHOWN = ("class_name", "pid", "ip")
_ADVICE = " Some common causes include:"
# A frame of a traceback and its source line are indented; the error that ended it is not.
_FRAME = re.compile(r'^\s+File ".*", line \d+', re.MULTILINE)


def root_cause(error: BaseException) -> BaseException:
    """Return the exception that a Ray task raised, without the wrappers of the processes that it crossed.

    An exception that is no `RayTaskError` is returned as it is: an error that was translated on the way says more
    than its `__cause__`.
    """
    from ray.exceptions import RayTaskError

    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def is_lost_process(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, is of a process that is gone.

    It is Ray's of an actor or of an object that was on the actor's node, or a rank's of another one in its group. An
    error that the constructor of an actor raised is none of these.
    """
    from ray.exceptions import ObjectLostError, RayActorError

    seen: set[int] = set()
    while error is not None:
        cause = root_cause(error)
        if id(cause) in seen:  # a client may raise the cause of Ray's error from that error
            return False
        seen.add(id(cause))
        if isinstance(cause, RayActorError):
            return not _FRAME.search(str(cause))
        if isinstance(cause, ObjectLostError) or (isinstance(cause, RuntimeError) and _LOST_RANK.search(str(cause))):
            return True
        error = cause.__cause__
    return False


def describe_error(error: BaseException) -> str:
    """Return `Type: message` of the root cause; where Ray kept only the text of a traceback, its last line."""
    from ray.exceptions import RayActorError

    cause = root_cause(error)
    text = str(cause).strip()
    if _FRAME.search(text):
        return after_traceback(text)
    if isinstance(cause, RayActorError):
        text = lost_actor(text)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def sendable(error: Exception) -> Exception:
    """The error if another process can load it, otherwise one with its text."""
    from ray import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001  the class of a user may do anything here
        return RuntimeError(describe_error(error))
    return error


def after_traceback(text: str) -> str:
    """PURE: what follows the last frame of a traceback: `Type: message`, which may have several lines."""
    lines = text.splitlines()
    last_indented = max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return "\n".join(lines[last_indented + 1 :]).strip() or text


def lost_actor(text: str) -> str:
    """PURE: Ray's text about an actor that is gone, on one line: which process it was, and how it ended."""
    lines = text.splitlines()
    fields = {match[1]: match[2] for line in lines if (match := _FIELD.match(line))}
    first, *others = [line.partition(_ADVICE)[0].strip() for line in lines if not _FIELD.match(line)] or [""]
    process = [fields[name] if name == "class_name" else f"{name} {fields[name]}" for name in _SHOWN if name in fields]
    if process:
        first = f"{first.removesuffix('.')} ({', '.join(process)})."
    return " ".join(line for line in (first, *others) if line)
