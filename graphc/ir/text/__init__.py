"""The IRs as text: printers and parsers."""
