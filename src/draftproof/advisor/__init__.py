"""Does speculation pay here? Predicted from measured costs and acceptance, and said in other engines' words too."""
