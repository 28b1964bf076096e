"""What users need to test their own workflows and stores."""
