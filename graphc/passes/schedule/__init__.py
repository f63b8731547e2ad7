"""Schedules: how a computation is put into loops, as data that prints, parses and is measured."""
