"""The state of a run as data: models of the documented schema, the ledger and its fold, validation, migrations."""
