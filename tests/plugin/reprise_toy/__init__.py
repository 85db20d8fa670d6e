"""A plug-in package: methods and tasks from outside, found through its entry point."""
