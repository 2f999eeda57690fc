"""Federated training: sites train together and exchange adapters only; their data stays local."""
