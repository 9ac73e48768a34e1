import unittest

import pytest


class TestSshd:
    path = "/etc/passwd"

    @pytest.fixture(scope="class")
    def kernel(self, host):
        return host.check_output("uname -s")

    @pytest.mark.parametrize("name", ["root", "no such account"])
    def test_account(self, host, name):
        """PASS | FAIL assert 'no such account' in"""
        assert name in host.file(self.path).content_string

    def test_kernel(self, kernel):
        """PASS"""
        assert kernel == "Linux"

    class TestInner:
        def test_inner(self, host):
            """PASS"""
            assert host.user("root").uid == 0


class TestSetup:
    value = 0
    name = ""

    @classmethod
    def setup_class(cls):
        cls.value = 3

    def setup_method(self, method):
        self.name = method.__name__

    def test_both(self, host):
        """PASS"""
        assert (self.value, self.name) == (3, "test_both")


class TestBrokenSetup:
    @classmethod
    def setup_class(cls):
        raise RuntimeError("of the class")

    def test_never(self, host):
        """ERROR RuntimeError: of the class"""


class TestBrokenTeardown:
    def teardown_method(self, method):
        raise ValueError("of the method")

    def test_ends(self, host):
        """ERROR in teardown: error in the check"""


class Unit(unittest.TestCase):
    def test_passes(self):
        """PASS"""
        self.assertTrue(True)

    def test_fails(self):
        """FAIL 1 != 2"""
        self.assertEqual(1, 2)

    @unittest.skip("not here")
    def test_skips(self):
        """UNPROVEN not here"""

    def test_one_of_three(self):
        """FAIL 1 == 1"""
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)
