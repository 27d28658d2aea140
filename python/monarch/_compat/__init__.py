"""What programs say that were written for earlier versions of the API."""
