"""Actor classes of ``__main__``: decoded once where they arrive, and again when they have changed."""

from script_run import Run, program

PROGRAM = program("classes_by_value/program.py")


def test_the_same_class_is_decoded_once():
    Run(PROGRAM + """
first, second = look(), look()
assert first[0] == second[0] and (first[3], second[3]) == (1, 2), (first, second)
""").ok()  # fmt: skip


def test_a_class_that_has_changed_is_decoded_again_also_when_it_is_changed_back():
    Run(PROGRAM + """
assert look()[1:3] == ("first", "old")
A.label = "second"
assert look()[1:3] == ("second", "old")
A.label = "first"
assert look()[1:3] == ("first", "old")
exec("def helper():\\n    return 'new'", globals())
assert look()[1:3] == ("first", "new")
""").ok()  # fmt: skip


def test_in_the_process_of_the_script_it_is_the_class_itself():
    Run(PROGRAM + """
assert look(this_proc())[3] == 1 and A.seen == 1
assert look(this_proc())[3] == 2 and A.seen == 2
""").ok()  # fmt: skip


def test_what_travels_beside_the_class_may_share_its_variables():
    Run(program("classes_by_value/what_travels_beside_the_class_may_share_its_variables.py")).ok()
