"""The identities of hosts (monarch.job)."""

import pytest

from monarch.actor import ProcId
from monarch.job import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)

IDS = [ProcId.from_string(text) for text in ("service<2MuA>", "service<2MuB>")]


@pytest.mark.feature(57, "identities of hosts")
def test_each_new_one_is_another():
    made = [new_service_proc_id() for _ in range(4)]
    assert len(set(made)) == 4 and {one.label for one in made} == {"service"}
    assert [str(one)[:8] for one in made] == ["service<"] * 4


@pytest.mark.feature(57, "identities of hosts")
def test_they_travel_as_a_json_list():
    assert serialize_service_proc_ids(IDS) == '["service<2MuA>", "service<2MuB>"]'
    assert deserialize_service_proc_ids(serialize_service_proc_ids(iter(IDS))) == IDS
    assert deserialize_service_proc_ids("[]") == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", "service<2MuA>", '["service<0>"]', '["Service"]'])
def test_a_text_that_is_no_list_of_them_is_refused(text):
    with pytest.raises(ValueError):
        deserialize_service_proc_ids(text)


@pytest.mark.feature(57, "identities of hosts")
def test_they_stand_in_front_of_an_address():
    assert service_proc_addr("tcp://h:1", IDS[0]) == "service<2MuA>@tcp://h:1"
    assert service_proc_addr("tcp://h:1", None) == "tcp://h:1"
    assert service_proc_addr("tcp://h:1@tcp://*:1", IDS[0]) == "service<2MuA>@tcp://h:1@tcp://*:1"
    addresses = ["tcp://h:1", "ipc://@name"]
    assert service_proc_addrs(addresses, IDS) == ["service<2MuA>@tcp://h:1", "service<2MuB>@ipc://@name"]
    assert service_proc_addrs(addresses, None) == addresses
    with pytest.raises(ValueError, match="^got 2 worker addresses and 1 service ProcIds$"):
        service_proc_addrs(addresses, IDS[:1])
    with pytest.raises(ValueError, match="has an identity already"):
        service_proc_addr("service@tcp://h:1", IDS[0])


@pytest.mark.feature(57, "identities of hosts")
def test_a_host_finds_its_own_in_the_environment(monkeypatch):
    assert (SERVICE_PROC_IDS_ENV, SERVICE_PROC_RANK_ENV) == ("MONARCH_SERVICE_PROC_IDS", "MONARCH_SERVICE_PROC_RANK")
    monkeypatch.delenv(SERVICE_PROC_IDS_ENV, raising=False)
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv(SERVICE_PROC_IDS_ENV, serialize_service_proc_ids(IDS))
    with pytest.raises(ValueError, match="MONARCH_SERVICE_PROC_RANK, which says which is this host's, is not"):
        ranked_service_proc_id_from_env()
    monkeypatch.setenv(SERVICE_PROC_RANK_ENV, "1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    assert ranked_service_proc_id_from_env() == IDS[1]
    assert ranked_service_proc_id_from_env(rank_env="JOB_COMPLETION_INDEX") == IDS[0]
    for rank in ("2", "-1", "x", ""):
        monkeypatch.setenv(SERVICE_PROC_RANK_ENV, rank)
        with pytest.raises(ValueError, match="MONARCH_SERVICE_PROC_RANK must be a number below 2"):
            ranked_service_proc_id_from_env()
