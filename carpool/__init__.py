"""What every service stands on, and what applications import: `from carpool import Client`.

The public names are imported on first use: no process loads what it does not need. This façade is
the one exception to the direction of imports.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from producers import AnswerFailed, AnswerTimeout, Client, PublishError, RecordError
    from searcher.local import LocalSearcher

__all__ = [
    "AnswerFailed",
    "AnswerTimeout",
    "Client",
    "LocalSearcher",
    "PublishError",
    "RecordError",
    "__version__",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports a public name. Raises `ImportError` that names the extra where packages lack."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "LocalSearcher":
        import producers as client_package

        return getattr(client_package, name)
    try:
        import searcher.local as local_search
    except ModuleNotFoundError as error:
        raise ImportError(
            f"LocalSearcher needs {error.name}, which is not installed: pip install "
            "'carpool[services]'"
        ) from error
    return local_search.LocalSearcher
