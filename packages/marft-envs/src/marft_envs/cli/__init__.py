"""Commands added by marft_envs."""
