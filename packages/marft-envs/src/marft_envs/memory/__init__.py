"""Long conversations: agents read them once, take notes within a budget, and answer questions later."""
