"""Where functions run: one interface (`backend`), one adapter a platform."""
