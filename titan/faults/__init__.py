"""What goes wrong while a run trains, one file a fault: seen by all ranks alike, named, and answered by a stated rule.

Each part takes the tensors or numbers that it reads and knows neither the trainer nor a model. On a good step they cost
nothing or next to nothing: no all-reduce of their own but at log steps, saves and audits. docs/faults.md is the user's
table of them.
"""
