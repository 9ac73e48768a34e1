"""Rehearsals: recipes built in sandboxes of the local region and judged, many in one run.

candidates           the recipes of a run: plan, base image, and what an earlier run found of the same inputs
selection            what a run of CI builds: a sample, and what a change affects
inputs               digest of all that decides what a rehearsal finds
rehearse             one recipe: build, checks of the image's files, a machine, removal of the image
series               many recipes, side by side
results              what a rehearsal found; rehearsal.json
table                the results for people
"""

from gpu_ami.rehearsal.candidates import Candidate
from gpu_ami.rehearsal.rehearse import Options
from gpu_ami.rehearsal.results import Rehearsal, worst_exit_code

__all__ = ["Candidate", "Options", "Rehearsal", "worst_exit_code"]
