"""The only code that touches untrusted bytes or opens outbound sockets. Media is never decoded in the gateway's process."""
