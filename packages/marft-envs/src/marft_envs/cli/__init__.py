"""Commands of marft_envs."""
