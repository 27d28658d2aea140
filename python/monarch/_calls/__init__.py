"""Calls: what is pickled, sent and answered; futures, endpoints, handles."""
