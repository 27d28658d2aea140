import pytest

from monarch.config import get_global_config, parametrize_config, parametrize_config_pointwise

seen: list = []


def note():
    found = get_global_config()
    seen.append((found["message_ttl_default"], found["prefix_with_rank"]))


class TestAll:
    @parametrize_config(message_ttl_default={1, 2}, prefix_with_rank=[True, False])
    @pytest.mark.parametrize("x", [10])
    def test_all(self, x, tmp_path):
        assert x == 10 and tmp_path.exists()
        note()


def test_all_were_seen():
    assert seen == [(1, True), (1, False), (2, True), (2, False)]
    seen.clear()


@parametrize_config_pointwise(message_ttl_default=[1, 2], prefix_with_rank=(False, True))
def test_pairs():
    note()


def test_pairs_were_seen():
    assert seen == [(1, False), (2, True)]
    seen.clear()


@parametrize_config(message_ttl_default=[1, 2])
@parametrize_config(prefix_with_rank={False})
def test_twice():
    note()


def test_twice_was_seen():
    assert seen == [(1, False), (2, False)]
    assert get_global_config()["message_ttl_default"] == 64
