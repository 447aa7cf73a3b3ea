"""`headrace consume`: records to standard output, in whatever form."""
