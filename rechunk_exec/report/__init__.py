"""What people see of a plan and a run: progress, tables. Layer: above executors, below api."""
