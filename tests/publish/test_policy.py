"""The release policy: what a file means, and every mistake at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.publish.policy import RegionPolicy, load_policy

WHOLE = """
regions:
  - {region: us-east-1}
  - {region: eu-central-1, kms_key: alias/images}
share:
  accounts: ["111122223333"]
  organizations: [arn:aws:organizations::111122223333:organization/o-a1b2c3d4e5]
ssm: {prefix: /images/demo}
deprecate_after: 180
deregistration_protection: true
keep: 3
retire_after: 14
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "publish.yml"
    path.write_text(text)
    return path


def test_a_whole_policy_is_read(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, WHOLE))
    assert policy.regions == (RegionPolicy("us-east-1"), RegionPolicy("eu-central-1", "alias/images"))
    assert policy.accounts == ("111122223333",) and policy.organizations[0].endswith("o-a1b2c3d4e5")
    assert (policy.latest, policy.pinned("v1")) == ("/images/demo/latest", "/images/demo/v1")
    assert (policy.deprecate_after, policy.deregistration_protection, policy.keep) == (180, True, 3)
    assert policy.retire_after == 14 and not policy.public and policy.is_shared


def test_regions_alone_share_nothing_and_retire_nothing(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, "regions: [{region: us-east-1}]"))
    assert not policy.is_shared and policy.keep == 0 and policy.latest == "" and policy.pinned("v1") == ""


OF_IMAGES = """
images:
  other:
    regions: [{region: us-west-2}]
    share: {}
    ssm: {prefix: /images/other}
    keep: 10
  same: {deprecate_after: 30}
"""


def test_an_image_s_own_keys_replace_the_common_ones(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE + OF_IMAGES)
    other, same, common = (load_policy(path, image) for image in ("other", "same", "demo"))
    assert common == load_policy(path) == load_policy(write(tmp_path, WHOLE))
    assert same == replace(common, deprecate_after=30)
    assert other.regions == (RegionPolicy("us-west-2"),) and not other.is_shared
    assert (other.latest, other.keep, other.retire_after) == ("/images/other/latest", 10, 14)


MISTAKES = {
    "regoins: []": ["regoins: unknown key; did you mean regions?", "regions: missing"],
    "regions: [{region: europe, kms: alias/x}]": ["regions[0].region: expected", "did you mean kms_key?"],
    "regions: [{kms_key: alias/x}]": ["regions[0].region: missing"],
    "regions: [{region: us-east-1}, {region: us-east-1, kms_key: alias/x}]": ["regions[1]: 'us-east-1' is a duplicate"],
    "{regions: [{region: us-east-1}], share: {accounts: [111122223333]}}": ['in YAML write "111122223333"'],
    "{regions: [{region: us-east-1}], share: {organizations: [o-a1b2c3d4e5]}}": ["share.organizations[0]"],
    "{regions: [{region: us-east-1}], ssm: {prefix: /aws/service/x}}": ["ssm.prefix"],
    "{regions: [{region: us-east-1}], ssm: {}}": ["ssm.prefix: missing"],
    "{regions: [{region: us-east-1}], retire_after: 3}": ["retire_after: expected keep beside it"],
    "{regions: [{region: us-east-1, kms_key: alias/x}], share: {public: true}}": ["an encrypted AMI cannot be public"],
    "{regions: [{region: us-east-1}], share: {public: true}, deprecate_after: 900}": ["at most 730 days"],
    "regions: [{region: us-east-1, kms_key: 'arn:aws:kms:eu-west-1:111122223333:key/1'}]": ["a key in us-east-1"],
    "{regions: [{region: us-east-\uff11}]}": ["regions[0].region: expected something like eu-central-1"],
    "{regions: [{region: us-east-1}], share: {accounts: ['\uff1111122223333']}}": ["share.accounts[0]"],
    "{regions: [{region: us-east-1}], images: {d\u0435bian: {keep: 3}}}": ["expected a key like debian12-gpu"],
    "{regions: [{region: us-east-1}], ssm: {prefix: ../x}}": ["ssm.prefix"],
    "{regions: [{region: us-east-1}], keep: .nan}": ["keep: expected a whole number from 1"],
    "{regions: [{region: us-east-1}], keep: 1e400}": ["keep: expected a whole number from 1"],
    "{regions: [{region: us-east-1}], keep: 99999999999999999999}": ["keep: expected a whole number from 1"],
    "{regions: [{region: us-east-1}], keep: 3, keep: 4}": ["keep: expected once, also in line 1"],
    "{regions: [{region: us-east-1}], keep: 0}": ["keep: expected a whole number from 1"],
    "{regions: [{region: us-east-1}], images: {a: {keeep: 3}}}": ["images.a.keeep: unknown key; did you mean keep?"],
    "{regions: [{region: us-east-1}], images: {a: {ssm: {}}}}": ["images.a.ssm.prefix: missing"],
    "{regions: [{region: us-east-1}], images: {a: {retire_after: 3}}}": ["images.a.retire_after: expected keep beside"],
    "{regions: [{region: us-east-1, kms_key: alias/x}], images: {a: {share: {public: true}}}}": [
        "1 mistake", "publish.yml:1: images.a.regions[0].kms_key: an encrypted AMI cannot be public",
    ],
    "{regions: [{region: us-east-1}], images: {a: {ssm: {prefix: /i/x}}, b: {ssm: {prefix: /i/x}}}}": [
        "images.b.ssm.prefix: '/i/x' is also that of a",
    ],
    "{regions: [{region: us-east-1}], images: {a: {images: {}}}}": ["images.a.images: unknown key"],
    "{regions: [{region: us-east-1}], images: {a: 3}}": ["images.a: expected keys and values, got 3"],
    "": ["(whole file): expected keys and values"],
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_policy(write(tmp_path, text))
    for part in MISTAKES[text]:
        assert part in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"publish\.yml: No such file"):
        load_policy(tmp_path / "publish.yml")
