"""How many actors the next round gets: one interface (`scaler`), one scaler a file."""
