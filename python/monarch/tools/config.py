"""Not there yet."""

from monarch._notices import module_not_yet

raise module_not_yet(__name__)
