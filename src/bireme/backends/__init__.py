"""The launchers of ``--launcher``, one module for each; a module is loaded only when it is used."""
