"""Loads the programs of a service: the built-in ones, and those of modules that an operator names.

The built-in programs run in the service, those of each module in a child process of its own.
"""

from __future__ import annotations

from types import MappingProxyType

from carpool.errors import ConfigError
from carpool.workflow import programs as built_in
from carpool.workflow.program import Program, Programs
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.workflows import Workflows


def load_workflows(settings: WorkflowSettings) -> Workflows:
    """Returns the workflows of a service. Raises `ConfigError`."""
    return Workflows(
        programs=load_programs(settings.modules),
        steps_max=settings.steps_max,
        tokens_max=settings.tokens_max,
    )


def load_programs(modules: str = "") -> Programs:
    """Returns the built-in programs and those of `modules`, names or .py files with commas between.

    Starts a process for each module, which ends with this one. Raises `ConfigError` that names
    module and line.
    """
    from carpool.workflow.process import ModuleProcess  # built-in programs need no process

    values = (value for module in built_in.MODULES for value in vars(module).values())
    found = {(each.name, each.version): each for each in values if isinstance(each, Program)}
    reserved = {name for name, _ in found}
    for name in filter(None, map(str.strip, modules.split(","))):
        for program in ModuleProcess(name).start():
            if program.name in reserved:
                raise ConfigError(
                    f"{name}: {program.name} is a built-in workflow; choose another name"
                )
            key = (program.name, program.version)
            if found.setdefault(key, program).digest != program.digest:
                raise ConfigError(
                    f"{name}: there are two programs {program.label}; raise the version"
                )
    return MappingProxyType(found)
