"""Not there yet."""

from monarch._not_yet import module_not_yet

raise module_not_yet(__name__)
