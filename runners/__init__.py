"""The harness: composes, schedules, records, judges and reports runs."""
