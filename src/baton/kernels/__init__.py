"""Compute kernels. One interface (`interface.Kernels`), a plain torch twin, and one implementation per device."""
