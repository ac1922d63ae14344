"""The launchers of ``--launcher``; a module is loaded only when its launcher is used."""
