"""Rehearsals: recipes built in sandboxes of the local region and judged, many in one run.

candidates           the recipes of a run: plan, base image, digest of all inputs, earlier result; the sample of CI
rehearse             build, checks of the image's files, a machine, removal of the image; many recipes side by side
results              what a rehearsal found (rehearsal.json), and a run's results as text and Markdown
"""

from localregion.rehearsal.candidates import Candidate
from localregion.rehearsal.rehearse import Options
from localregion.rehearsal.results import Rehearsal, worst_exit_code

__all__ = ["Candidate", "Options", "Rehearsal", "worst_exit_code"]
