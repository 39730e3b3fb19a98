"""What people look at: tables, figures and pages, made from records, never from live engines."""
