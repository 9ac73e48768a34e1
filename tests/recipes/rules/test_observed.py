"""How a site's role declares that what it installs is observed."""

from __future__ import annotations

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.recipes.rules import Source, of_document


def test_mistakes_of_a_sites_sources_are_named() -> None:
    with pytest.raises(UsageError) as error:
        of_document([{"kind": "registry", "target": "x"}, {"kind": "file", "target": "/x", "pattern": "("}], "x.yml")
    assert "2 mistakes" in error.value.message
    assert "not a regular expression" in error.value.details[1]


def test_defaults_of_a_source_are_filled_in() -> None:
    (source,) = of_document([{"kind": "package", "target": "node-exporter"}], "x.yml").sources
    assert isinstance(source, Source)
    assert source.request()[:2] == ["package", "node-exporter"]
