"""The HTTP front of a fleet: places requests, sends each to one or two engines, keeps them through failures."""
