"""What a workflow is: blocks, inputs, expressions, and the order of waves."""
