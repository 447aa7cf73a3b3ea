"""Code that tests share; imported as `testkit`."""
