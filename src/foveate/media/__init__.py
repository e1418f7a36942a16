"""The only code that touches untrusted bytes or opens outbound sockets. The gateway reads headers, never pixels."""
