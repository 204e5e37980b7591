"""Sockets that speak DNS."""
