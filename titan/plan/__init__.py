"""`titan plan`: what a run will need, before it costs anything. Pure functions of a configuration and a device.

`facts` has the records that the parts exchange: memory and traffic a rank, the actions of a schedule. No part needs an
accelerator, or as many processes as the run has.
"""
