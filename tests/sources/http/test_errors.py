"""Exit codes: 2 where a source lacks something or serves something else, 4 where it cannot be reached."""

from gpu_ami.sources.http.errors import NotThere, SourceError, Unreachable


def test_exit_codes_and_states() -> None:
    kinds = [(kind.exit_code, kind.state) for kind in (SourceError, NotThere, Unreachable)]
    assert kinds == [(2, "wrong"), (2, "missing"), (4, "unreachable")]
