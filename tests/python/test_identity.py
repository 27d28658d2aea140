"""Uid, ProcId and ActorAddr."""

import copy
import pickle

import pytest

from monarch.actor import Actor, ProcId, Uid, context, endpoint

VALUE_MAX = 2**64 - 1


@pytest.mark.parametrize(
    ("value", "label", "text"),
    [
        (6, "svc", "svc<7>"), (0, None, "<1>"), (57, None, "<Z>"), (58, None, "<21>"), (3364, None, "<211>"),
        (10**15, None, "<8NUiDEkbQ>"), (VALUE_MAX, "a-b_1", "a-b_1<JPwcyDCgEup>"),
    ],
)  # fmt: skip
def test_an_instance_is_a_number_in_base_58_behind_its_label(value, label, text):
    uid = Uid.instance_from_value(value, label)
    assert str(uid) == text and repr(uid) == f"Uid.from_string({text!r})"
    assert (uid.label, uid.instance_value, uid.is_instance, uid.is_singleton) == (label, value, True, False)
    read = Uid.from_string(text)
    assert (read, read.label, read.instance_value) == (uid, label, value)


def test_a_singleton_is_its_label():
    uid = Uid.from_string("service")
    assert (str(uid), uid.label, uid.instance_value) == ("service", "service", None)
    assert (uid.is_instance, uid.is_singleton) == (False, True)
    assert uid == Uid.from_string("service") != Uid.from_string("other")


def test_labels_of_instances_do_not_count():
    one, same, other = Uid.instance_from_value(6, "a"), Uid.instance_from_value(6), Uid.instance_from_value(7, "a")
    assert one == same and hash(one) == hash(same)
    assert one != other and one != "a<7>" and one != Uid.from_string("a")
    assert len({one, same, other, Uid.from_string("a")}) == 3


def test_new_ones_are_random():
    assert len({Uid.instance(), Uid.instance("svc"), Uid.anonymous(), Uid.anonymous()}) == 4
    assert (Uid.instance().label, Uid.instance("svc").label, Uid.anonymous().label) == (None, "svc", None)
    for uid in (Uid.instance("svc"), Uid.anonymous()):
        assert Uid.from_string(str(uid)) == uid and uid.is_instance


LABELS = [
    ("A", "label must start with a lowercase letter"),
    ("1a", "label must start with a lowercase letter"),
    ("_a", "label must start with a lowercase letter"),
    ("é", "label must start with a lowercase letter"),
    ("a b", "label contains invalid character ' '"),
    ("a.b", "label contains invalid character '.'"),
    ("a-", "label must end with a lowercase letter or digit"),
    ("x" * 64, "label exceeds 63 characters"),
]


@pytest.mark.parametrize(("label", "why"), [*LABELS, ("", "label must not be empty")])
def test_a_wrong_label_says_what_is_wrong(label, why):
    for make in (Uid.instance, lambda label: Uid.instance_from_value(1, label)):
        with pytest.raises(ValueError) as info:
            make(label)
        assert str(info.value) == f"invalid uid label: {why}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *LABELS,
        ("", "label must not be empty"),
        ("A<7>", "label must start with a lowercase letter"),
        ("svc<0>", "invalid base58 uid: 0"),
        ("svc<>", "invalid base58 uid: "),
        ("<JPwcyDCgEuq>", "invalid base58 uid: JPwcyDCgEuq"),
        ("svc<6", 'expected ">", found end of input'),
        ("svc<6>x", 'expected end of input, found "x"'),
    ],
)
def test_a_text_that_is_no_identity_is_a_value_error(text, why):
    for kind, what in ((Uid, "invalid uid"), (ProcId, "invalid proc id")):
        with pytest.raises(ValueError) as info:
            kind.from_string(text)
        assert str(info.value) == f"{what}: invalid uid syntax: {why} (in {text!r})"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Uid.instance_from_value(-1), OverflowError),
        (lambda: Uid.instance_from_value(2**64), OverflowError),
        (lambda: Uid("svc"), TypeError),
        (lambda: Uid.from_string(3), TypeError),
        (lambda: ProcId("svc"), TypeError),
        (lambda: ProcId.from_string(None), TypeError),
    ],
)
def test_what_makes_no_identity_is_refused(make, kind):
    with pytest.raises(kind):
        make()


def test_a_proc_id_is_a_uid_and_nothing_else():
    uid = Uid.instance_from_value(6, "svc")
    proc = ProcId(uid)
    assert (proc.uid, proc.label, str(proc)) == (uid, "svc", "svc<7>")
    assert repr(proc) == "ProcId.from_string('svc<7>')"
    assert proc == ProcId.from_string("svc<7>") == ProcId.from_string("<7>") and hash(proc) == hash(ProcId(uid))
    assert proc != uid and proc != "svc<7>" and proc != ProcId.from_string("service")
    assert ProcId.from_string("service").label == "service"


@pytest.mark.parametrize("text", ["service", "svc<7>", "<7>"])
def test_identities_pickle(text):
    for value in (Uid.from_string(text), ProcId.from_string(text)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            read = pickle.loads(pickle.dumps(value, protocol))
            assert (read, str(read)) == (value, text)
        assert str(copy.deepcopy(value)) == text


def test_identities_are_immutable():
    with pytest.raises(AttributeError):
        Uid.from_string("service").label = "other"
    with pytest.raises(AttributeError):
        ProcId.from_string("service").uid = None


@pytest.mark.feature(36, 37)
def test_the_id_of_an_actor_is_text_and_tells_its_parts(procs):
    class Named(Actor):
        @endpoint
        def identity(self) -> tuple:
            instance = context().actor_instance
            return instance.actor_id, instance.proc_id

    mesh = procs.spawn("na<me>@", Named)
    for _, (actor_id, proc_id) in mesh.identity.call().get(timeout=20).items():
        assert isinstance(actor_id, str) and actor_id.startswith("na<me>@<")
        assert (actor_id.actor_name, actor_id.label, actor_id.proc_id) == ("na<me>@", "na<me>@", proc_id)
        assert actor_id.uid.is_instance and pickle.loads(pickle.dumps(actor_id)).uid == actor_id.uid
    first, second = (procs.spawn("twice", Named).slice(gpus=0).identity.call_one().get()[0] for _ in range(2))
    assert first.uid != second.uid and first.proc_id == second.proc_id
    client = context().actor_instance.actor_id
    assert (client.actor_name, client.uid.instance_value) == ("root", 0)
