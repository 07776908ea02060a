"""The built-in programs, one a file. Their prompt templates are in generator/templates."""

from carpool.workflow.programs import condense, corrective, hyde, irg, multistep, one_shot, recomp

MODULES = (one_shot, hyde, multistep, irg, recomp, corrective, condense)
